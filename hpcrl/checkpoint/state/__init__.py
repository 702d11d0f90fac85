"""The trainer's state on disk: saved while training goes on, committed by one manifest, checked before it is used."""
