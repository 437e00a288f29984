// Package audit reads the audit log of the API server: which user sent which request, how often, and with which result. The lab
// uses it to count requests and to compare them with the RBAC rules of a component.
package audit
