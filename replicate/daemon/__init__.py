"""What every daemon is made of: its life, its files, its commands, and the driving of one link over one socket."""
