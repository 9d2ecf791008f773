"""The page of `replicate web`: the picture of several instances in a browser, pushed as it changes. It only shows."""
