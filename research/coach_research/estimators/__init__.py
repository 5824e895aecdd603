"""How good predictions are: Coach's models beside the papers', on measured jobs and curves."""
