def write_card(out, args, facts):
    pass
