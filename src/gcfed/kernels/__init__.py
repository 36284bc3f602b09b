"""What engines swap into a model or a traced step: other code for the same function."""
