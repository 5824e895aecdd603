"""What a function and its caller may rely on, under Coach's function host and under Nuclio's processor alike."""
