"""Optimisations of serving that claim to be lossless: clients of lossguard, judged by its gates like anyone's."""
