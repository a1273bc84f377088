"""Device code of lossguard's mechanisms, one package per operator."""
