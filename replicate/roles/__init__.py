"""What an instance is to the others: primary or secondary, and what changing that takes."""
