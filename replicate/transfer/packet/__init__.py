"""Packets: increments of the journal as files, for sites that no line joins; and the epochs, which say who has what."""
