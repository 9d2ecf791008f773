"""Who may talk to us, and whose files we take: TLS, certificates, keys, owners and modes."""
