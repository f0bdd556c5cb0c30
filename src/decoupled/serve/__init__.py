"""An engine behind HTTP, on many machines, inside other frameworks."""
