"""What one row of a text log reports: values and the position in the training."""
