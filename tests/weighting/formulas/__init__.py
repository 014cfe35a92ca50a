"""The formula of every weighting rule, written from its publication at 50 digits; nothing here reads the library's code."""
