"""The GC-Fed paper: its methods and its protocol, as its authors ran them."""
