"""Jobs that are looked at: many by one name, until they are over; and what a terminal may show of them."""
