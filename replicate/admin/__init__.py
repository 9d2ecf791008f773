"""What an administrator does to an instance: regions added and released, instances removed, pools swept."""
