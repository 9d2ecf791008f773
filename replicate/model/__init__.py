"""What the product talks about: transactions, positions, moments, findings. Pure."""
