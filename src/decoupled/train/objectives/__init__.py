"""What a step of training minimises: a file per objective, chosen by the recipe, run by the one loop."""
