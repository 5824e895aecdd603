"""Programs for those who develop Coach."""
