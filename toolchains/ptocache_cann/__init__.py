"""Finding and identifying a CANN installation; shared by the toolchains that compile for its devices."""
