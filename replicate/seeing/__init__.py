"""See it: what `replicate watch` and `replicate web` show of an instance, one picture for both."""
