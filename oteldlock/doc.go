package oteldlock
