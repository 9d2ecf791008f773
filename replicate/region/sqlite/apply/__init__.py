"""Changes applied to the rows of a region."""
