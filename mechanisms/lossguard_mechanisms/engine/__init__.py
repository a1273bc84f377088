"""The embedded serving engine: continuous batching, paged keys and values, recurrent slots, speculation as a plug-in.

``adapter`` is what lossguard sees. ``core`` is the loop, one step at a time: ``scheduler`` says who takes part,
``memory`` owns slots and pages, ``sampler`` chooses tokens, ``speculation`` drafts and accepts, ``commit`` is the only
place that changes states after a verification.
"""
