"""The checkpoint doctor: reads trained weights without trusting the file."""
