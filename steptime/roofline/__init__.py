"""How fast it could have gone: FLOPs and bytes of every op, the hardware's peaks, and the roofline between them."""
