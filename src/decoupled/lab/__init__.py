"""What is swept, raced and drawn."""
