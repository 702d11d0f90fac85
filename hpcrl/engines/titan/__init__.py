"""The trainer on torchtitan. Importing this package imports no torch; its modules do, except ``settings``."""
