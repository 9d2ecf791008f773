"""What has been received, read as windows."""
