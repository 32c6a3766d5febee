"""What the speed figures in the README come from; see README.md here."""
