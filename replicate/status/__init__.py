"""What an operator sees: the state of an instance, its findings, and the text of both."""
