"""What several ranks do, in processes of their own."""
