// Package audit reads what the API server has written down about its requests: who
// asked for what, how often, and with which answer. It is how the lab counts requests
// and compares them with the rights that a component was given.
package audit
