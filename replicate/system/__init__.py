"""What stands between us and the operating system: files, locks, its errors."""
