"""What a model is: nothing here reads a store or a request."""
