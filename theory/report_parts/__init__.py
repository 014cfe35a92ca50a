"""Parts of the HTML report, each a function from records to markup; `theory.report` puts them together."""
