"""The functions of ``import zbopt``: what the command line does, in a line each, with types.

``zbopt`` loads each of them when it is asked for; import them from there.
"""
