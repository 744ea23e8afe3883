"""Where one rank's time went: steps, exclusive ownership of the device, and a cause for every idle nanosecond."""
