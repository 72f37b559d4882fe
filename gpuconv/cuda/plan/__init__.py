"""What a launch is, and how one of several is chosen; nothing here knows a kernel."""
