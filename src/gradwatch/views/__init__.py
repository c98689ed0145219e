"""What people look at: terminal, animation, report, page, export."""
