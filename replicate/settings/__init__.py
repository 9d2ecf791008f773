"""The table of settings, who reads which, and the file that gives them."""
