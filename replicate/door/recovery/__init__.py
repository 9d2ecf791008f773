"""Recovery: journal, pool and regions brought together after whatever ended the last process."""
