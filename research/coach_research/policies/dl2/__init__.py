"""DL²: a network decides, trained beforehand by `coach train dl2`."""
