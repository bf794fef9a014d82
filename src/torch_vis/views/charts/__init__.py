"""Charts of reports, drawn by Plotly or Matplotlib."""
