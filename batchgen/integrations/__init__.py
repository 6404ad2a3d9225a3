"""Other programs' libraries, each imported when it is used."""
