"""The pytest plugin: how ``lossguard_pytest`` turns marked tests into verdicts and an exit code.

Light on purpose: nothing here imports torch, numpy, scipy or the gate before a test asks for a verdict.
"""
