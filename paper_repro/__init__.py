"""What the papers print, beside what this project finds."""
