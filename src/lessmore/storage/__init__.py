"""Files: written atomically, with a checksum over all they hold, and verified before anything is used."""
