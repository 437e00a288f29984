// Package proxy stands between one component and the API server. It holds back what
// the component's watch caches receive of one resource, writes down each write, and
// lets a test act just before a write is forwarded or just after it was answered.
//
// The component brings no credentials: the proxy has them, listens on 127.0.0.1, and
// ends with the context that it was started with.
package proxy
