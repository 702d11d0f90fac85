"""What a run was trained on: prompts, answers, rewards, kept by the leading trainer for people to read.

::

    RUN/attempt_2/trajectories/began.json         the step that the attempt went on from; steps beyond it that earlier
                                                  attempts left were not trained for good
    RUN/attempt_2/trajectories/step-00000013.h5   rows of step 13 and some that follow, as snapshots of the queue lie: see
                                                  :mod:`hpcrl.dataplane.snapshot.layout`; ``step`` is the one that they were
                                                  trained in, from 1
"""
