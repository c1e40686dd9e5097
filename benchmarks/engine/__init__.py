"""What a step costs, and what each technique gains."""
